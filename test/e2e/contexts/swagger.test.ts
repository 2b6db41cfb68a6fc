import { Body, Controller, Get, HttpCode, Module, Param, Post, Query } from '@nestjs/common';
import type { Type } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ExpressAdapter } from '@nestjs/platform-express';
import {
  ApiBearerAuth,
  ApiCreatedResponse,
  ApiOkResponse,
  ApiOperation,
  ApiProperty,
  ApiTags,
  DocumentBuilder,
  SwaggerModule,
} from '@nestjs/swagger';
import type { OpenAPIObject } from '@nestjs/swagger';
import { describe, expect, it } from '@jest/globals';
import { RedisLockModule, WithLock } from '../../../lib/index.js';
import { sharedRedisUrl } from '../../support/redis/test-redis.js';

class BookingDto {
  @ApiProperty({ example: 'A7' })
  seat!: string;
}

/** In the place of `@WithLock`, where there is to be no lock. */
type MaybeLocked = () => MethodDecorator;
const locked: MaybeLocked = () => WithLock('booking:<id>') as MethodDecorator;
const unlocked: MaybeLocked = () => () => undefined;

/** The same controller, made anew with a decorator above all others and one below them. */
function bookings(above: MaybeLocked, below: MaybeLocked): Type<unknown> {
  @ApiTags('bookings')
  @Controller('bookings')
  class BookingsController {
    @above()
    @Post(':id')
    @HttpCode(202)
    @ApiBearerAuth()
    @ApiOperation({ summary: 'Books a seat' })
    @ApiCreatedResponse({ type: BookingDto })
    @below()
    async book(@Param('id') _id: string, @Body() body: BookingDto): Promise<BookingDto> {
      return body;
    }

    @above()
    @ApiOkResponse({ type: [BookingDto] })
    @Get(':id')
    @below()
    async list(@Param('id') _id: string, @Query('page') _page: number): Promise<BookingDto[]> {
      return [];
    }
  }
  return BookingsController;
}

async function documentOf(controller: Type<unknown>): Promise<OpenAPIObject> {
  class AppModule {}
  Module({
    imports: [
      RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: `test-swagger-${process.pid}` }),
    ],
    controllers: [controller],
  })(AppModule);
  const app = await NestFactory.create(AppModule, new ExpressAdapter(), { logger: false });
  try {
    return SwaggerModule.createDocument(app, new DocumentBuilder().setTitle('Bookings').build());
  } finally {
    await app.close();
  }
}

describe('the OpenAPI document of a locked controller', () => {
  it.each([
    ['above', locked, unlocked],
    ['below', unlocked, locked],
    ['above and below', locked, locked],
  ])(
    'case 2: is the same as without locks, with @WithLock %s the other decorators',
    async (_, above, below) => {
      const expected = await documentOf(bookings(unlocked, unlocked));
      expect(expected.paths['/bookings/{id}']?.post).toMatchObject({
        operationId: 'BookingsController_book',
        summary: 'Books a seat',
        parameters: [{ name: 'id', in: 'path' }],
        requestBody: {
          content: { 'application/json': { schema: { $ref: '#/components/schemas/BookingDto' } } },
        },
      });
      expect(await documentOf(bookings(above, below))).toEqual(expected);
    },
  );

  it('case 2: names the methods as their class does', () => {
    const { prototype } = bookings(locked, locked) as { prototype: Record<string, () => unknown> };
    const named = ['book', 'list'].map((name) => [prototype[name]?.name, prototype[name]?.length]);
    expect(named).toEqual([
      ['book', 2],
      ['list', 2],
    ]);
  });
});
